"""Configuration entries of options: which ones of onnxruntime have an effect.

entry --supported------> the session uses it
      --speed only-----> ignored silently: results do not change
      --disabled-------> ignored silently: the value has no effect in onnxruntime either
      --other----------> one warning: an effect is missing
"""

from __future__ import annotations

from .warn_once import say_once

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Folder of the external data of a model that is passed as bytes."""
HONOURED = frozenset((DATA_FOLDER,))
OF_SPEED = (
    *("session.inter_op.", "session.intra_op.", "session.intra_op_thread_affinities"),
    *("session.force_spinning_stop", "session.dynamic_block_base", "session.disable_prepacking"),
    *("session.use_env_allocators", "session.use_device_allocator_for_initializers"),
    *("session.external_data_loader.", "session.prepack.", "session.moe.offload."),
    *("session.use_external_initializer_file_buffers_directly", "session.use_ort_model_bytes_"),
    *("session.disable_quant_qdq", "session.enable_quant_qdq_cleanup", "session.qdqisint8allowed"),
    *("session.disable_double_qdq_remover", "session.disable_qdq_constant_folding"),
    *("session.disable_aot_function_inlining", "session.function_expansion_"),
    *("session.x64quantprecision", "session.enable_dq_matmulnbits_fusion"),
    *("session.qdq_matmulnbits_", "session.graph_optimizations_loop_level"),
    *("session.kernel_dispatch_policy", "optimization.constant_folding_max_output_size_in_bytes"),
    *("optimization.disable_specified_optimizers", "optimization.enable_cast_chain_elimination"),
    *("optimization.minimal_build_optimizations", "optimization.enable_gelu_approximation"),
    *("mlas.", "ep.cuda.", "ep.cpu.", "ep.cudaexecutionprovider."),
    *("memory.enable_memory_arena_shrinkage", "disable_synchronize_execution_providers"),
    *("gpu_graph_id", "qnn."),
)
"""Names or prefixes of entries that change only onnxruntime's speed and memory, or allow it to
round less exactly than by default: ignoring them is safe.
"""
OFF = {
    "session.load_model_format": ("", "ONNX"),
    "session.save_model_format": ("", "ONNX"),
    "session.allow_released_opsets_only": ("", "1"),
    "session.gqa_value_layout": ("",),
}
"""Values with which entries have no effect in onnxruntime; `NOTHING` for entries not listed."""
NOTHING = ("", "0")


def note_entry(kind: str, key: str, value: str) -> None:
    """Warn once about an entry whose effect is missing.

    Parameters
    ----------
    kind
        "session" or "run", for the message.
    """
    if key in HONOURED or key.startswith(OF_SPEED) or value in OFF.get(key, NOTHING):
        return
    say_once(f"the entry {key!r} of {kind}")
