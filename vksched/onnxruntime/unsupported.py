"""Intentionally unsupported names of onnxruntime, with reasons; a test compares them with
onnxruntime.
"""

from __future__ import annotations

from typing import NoReturn

_COMPILED = "models are compiled when they run, and no compiled model is written"
_PACKAGES = "model packages hold models for other providers"
_ADAPTERS = "adapters replace weights, which a compiled graph holds"
_SPARSE = "values are dense"
_STREAMS = "devices are vksched's own, and nobody else submits to them"
_ASSIGNED = "the plan says where each op runs: session.model_run.plan.explain()"

MISSING = {
    "AdapterFormat": _ADAPTERS,
    "LoraAdapter": _ADAPTERS,
    "ModelCompiler": _COMPILED,
    "OrtCompileApiFlags": _COMPILED,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtExternalInitializerInfo": _COMPILED,
    "ModelPackage": _PACKAGES,
    "ModelPackageComponentContext": _PACKAGES,
    "ModelPackageContext": _PACKAGES,
    "ModelPackageOptions": _PACKAGES,
    "ModelPackageWriteMode": _PACKAGES,
    "OrtArenaCfg": "memory is vksched's own, and needs no arena",
    "OrtEpAssignedNode": _ASSIGNED,
    "OrtEpAssignedSubgraph": _ASSIGNED,
    "OrtSparseFormat": _SPARSE,
    "SparseTensor": _SPARSE,
    "OrtSyncStream": _STREAMS,
    "SessionIOBinding": "bindings are made by session.io_binding()",
}
"""Names in the module."""

MISSING_OF = {
    "InferenceSession": {
        "get_provider_graph_assignment_info": _ASSIGNED,
        "get_tuning_results": "vksched tune keeps its own results",
        "set_tuning_results": "vksched tune keeps its own results",
        "release_captured_graph": _STREAMS,
        "run_with_ortvaluevector": "lists of OrtValue go through run_with_ort_values",
        "set_ep_dynamic_options": "no provider has options that change between runs",
    },
    "IOBinding": {"get_outputs_as_ortvaluevector": "get_outputs() returns a list"},
    "OrtEpDevice": {
        "create_sync_stream": _STREAMS,
        "memory_info": "memory is vksched's own",
    },
    "OrtMemoryInfo": {"create_v2": "the constructor takes the same"},
    "OrtValue": {"as_sparse_tensor": _SPARSE, "ort_value_from_sparse_tensor": _SPARSE},
    "SessionOptions": {
        "clear_ep_context_data_read_func": _COMPILED,
        "set_ep_context_data_read_func": _COMPILED,
        "set_provider_selection_policy_delegate": "a policy, or providers by name, choose devices",
    },
    "RunOptions": {"add_active_adapter": _ADAPTERS},
}
"""Names in classes."""


def refuse(module: str, name: str) -> NoReturn:
    """Raise AttributeError for a name that a module does not have."""
    why = f"; {MISSING[name]}" if name in MISSING else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{why}")
