"""Configuration entries of options, and which of onnxruntime's mean something here.

entry --honoured--------> the session reads it
      --speed alone-----> taken without a word: results are the same
      --switched off----> taken without a word: it would do nothing in onnxruntime either
      --any other-------> one warning, as the caller would miss what it does
"""

from __future__ import annotations

from .warn_once import say_once

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The folder of external data for a model that is given as bytes."""
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
"""Names, or their beginnings, of entries that change how fast and in how much memory onnxruntime
computes, or let it round less exactly than by default: nobody misses that.
"""
OFF = {
    "session.load_model_format": ("", "ONNX"),
    "session.save_model_format": ("", "ONNX"),
    "session.allow_released_opsets_only": ("", "1"),
    "session.gqa_value_layout": ("",),
}
"""Values by which entries do nothing in onnxruntime; for those that are not here `NOTHING`."""
NOTHING = ("", "0")


def note_entry(kind: str, key: str, value: str) -> None:
    """Warn of an entry whose effect the caller would miss, the first time. kind: of options."""
    if key in HONOURED or key.startswith(OF_SPEED) or value in OFF.get(key, NOTHING):
        return
    say_once(f"the entry {key!r} of {kind}")
