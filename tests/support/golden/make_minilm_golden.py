"""Makes minilm.npz: golden sentence embeddings of MiniLM-L6 by PyTorch, to test against.

It is independent of the code under test: the forward pass is transformers.BertModel, or, where
transformers is not installed (or with --plain), the same network in torch.nn.functional.
Texts are cut to `max_seq_length` of sentence_bert_config.json, run one by one (no padding) in
float32, mean pooled over the attention mask and L2 normalised.  Needs torch, tokenizers,
safetensors, numpy; the model folder holds config.json, model.safetensors, tokenizer.json.
Run: python make_minilm_golden.py --model FOLDER [--out minilm.npz] [--plain]
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LONG = (
    "The caravan had been on the road for nine days when the guide lost the track. "
    "Nobody said so aloud, but the camels walked more slowly and the cook saved the flour. "
    "In the evening they lit a small fire and counted the skins that still held water. "
)

TEXTS: list[str] = [
    # ten lines of examples/data/sentences.txt
    "The children sowed sunflowers along the fence and measured them every Sunday.",
    "Copper conducts electricity well and bends without breaking.",
    "Binary search halves the remaining range at each step until the item is found.",
    "The museum's roof is folded like paper and rests on only four columns.",
    "Tides rise higher when the Sun and the Moon pull along the same line.",
    "The soup tasted flat until the cook squeezed half a lemon into the pot.",
    "The robot sorted ripe berries from green ones by their colour.",
    "Fog lay in the valley until noon while the hills stood in bright sunshine.",
    "The lighthouse museum opens only when the tide leaves the causeway dry.",
    "Wind turbines are spaced widely so that they do not steal each other's air.",
    "hello",  # one single word
    "?! ... ;; -- (*) [#] /\\ %&$",  # only punctuation
    " ".join(f"{LONG}That was halt number {i}." for i in range(1, 9)),  # over 300 words
    "À l'été, Zoë a mangé une crème brûlée près du château; señor Ångström était là.",
    "北京是中国的首都。東京は日本の首都です。서울은 한국의 수도이다.",
    "Great launch today 🚀🎉 see you at the beach 🏖️ 👩‍👩‍👧",
    " ",  # nothing but white space: [CLS] [SEP]
    "3.14159 2718 1,000,000 0x1F -42 6.022e23 2024-02-29",
    "THE MOON ALWAYS SHOWS THE SAME FACE",  # capitals
    "def f(x):\n\treturn x ** 2  # tabs,\r\nline ends and   runs of spaces\n",
    "Wer reitet so spät durch Nacht und Wind? Straßenbahn, Größe, Übermut.",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120,
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "The token [MASK] and the token [SEP] may stand in a text; so may <b>markup</b> &amp; more.",
]


def transformers_forward(folder: Path) -> Forward:
    """The network as transformers has it, with the weights of the folder."""
    from transformers import BertModel

    model = BertModel.from_pretrained(
        str(folder), add_pooling_layer=False, attn_implementation="eager", local_files_only=True
    )
    model = model.float().eval()

    def forward(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask).last_hidden_state

    return forward


def plain_forward(folder: Path) -> Forward:
    """The same network written out with torch.nn.functional."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["hidden_act"] != "gelu" or config["position_embedding_type"] != "absolute":
        raise SystemExit("only BERT with gelu and absolute positions is written out here")
    heads, eps = int(config["num_attention_heads"]), float(config["layer_norm_eps"])
    w = {
        k: v.float() if v.is_floating_point() else v
        for k, v in load_file(str(folder / "model.safetensors")).items()
    }

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)

    def forward(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        keep = mask[:, None, None, :].bool()
        for i in range(int(config["num_hidden_layers"])):
            at = f"encoder.layer.{i}."
            q, k, v = (
                linear(x, f"{at}attention.self.{part}")
                .view(batch, length, heads, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            scores = (q @ k.transpose(2, 3)) / q.shape[-1] ** 0.5
            weights = scores.masked_fill(~keep, float("-inf")).softmax(-1)
            seen = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
            x = norm(
                x + linear(seen, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm"
            )
            wide = F.gelu(linear(x, f"{at}intermediate.dense"))
            x = norm(x + linear(wide, f"{at}output.dense"), f"{at}output.LayerNorm")
        return x

    return forward


def embed(texts: list[str], folder: Path, forward: Forward) -> np.ndarray:
    """One normalised float32 row per text."""
    limit = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=int(limit["max_seq_length"]))
    rows: list[np.ndarray] = []
    with torch.inference_mode():
        for text in texts:
            code = tokenizer.encode(text)
            ids = torch.tensor([code.ids], dtype=torch.long)
            mask = torch.tensor([code.attention_mask], dtype=torch.long)
            hidden = forward(ids, mask)
            m = mask[:, :, None].to(hidden.dtype)
            mean = (hidden * m).sum(1) / m.sum(1).clamp(min=1e-9)
            rows.append(F.normalize(mean, p=2, dim=1)[0].numpy())
    return np.stack(rows).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the golden MiniLM embeddings.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("minilm.npz"))
    parser.add_argument("--plain", action="store_true", help="do not use transformers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    built = [
        f"python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"tokenizers {version('tokenizers')}",
        f"numpy {np.__version__}",
    ]
    plain = bool(args.plain)
    if not plain:
        try:
            import transformers
        except ImportError:
            plain = True
        else:
            built.insert(2, f"transformers {transformers.__version__} (BertModel, eager)")
    if plain:
        built.insert(2, "torch.nn.functional written out, no transformers")
    forward = plain_forward(args.model) if plain else transformers_forward(args.model)
    embeddings = embed(TEXTS, args.model, forward)
    if embeddings.shape != (24, 384) or not np.isfinite(embeddings).all():
        raise SystemExit(f"unexpected result: shape {embeddings.shape}")
    np.savez_compressed(
        args.out, texts=np.array(TEXTS), embeddings=embeddings, made_with=np.array("; ".join(built))
    )
    print(f"{args.out}: {embeddings.shape}, {args.out.stat().st_size} bytes; {'; '.join(built)}")


if __name__ == "__main__":
    main()
