"""OrtValue: memory that is shared with numpy and torch, by arrays and by DLPack."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import vksched as vs
import vksched.onnxruntime

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, parser  # noqa: E402


def test_numpy_reads_a_value_by_dlpack(ort: ModuleType) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    assert value.__dlpack_device__() == (1, 0)
    seen = np.from_dlpack(value)
    np.testing.assert_array_equal(seen, array)
    array[0, 0] = 9
    assert seen[0, 0] == 9 and np.asarray(value)[0, 0] == 9


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8", "bool"])
def test_a_value_of_dlpack_shares_its_memory(ort: ModuleType, dtype: str) -> None:
    array = np.ones((2, 3), dtype)
    value = ort.OrtValue.from_dlpack(array)
    assert value.shape() == [2, 3] and value.numpy().dtype == array.dtype
    array[0, 1] = 0
    assert value.numpy()[0, 1] == 0
    capsule = ort.OrtValue.from_dlpack(np.full(3, 2, dtype).__dlpack__())
    np.testing.assert_array_equal(capsule.numpy(), np.full(3, 2, dtype))
    back = ort.OrtValue.from_dlpack(value)
    assert back.data_ptr() == value.data_ptr() and back.is_tensor() and not back.is_sparse_tensor()


def test_a_value_of_dlpack_can_be_written(ort: ModuleType) -> None:
    array = np.ones(3, np.float32)
    value = ort.OrtValue.from_dlpack(array)
    value.update_inplace(np.array([4, 5, 6], np.float32))
    assert array.tolist() == [4, 5, 6]
    other = ort.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    other.update_inplace(np.zeros(3, np.float32))
    assert other.numpy().tolist() == [0, 0, 0]


def test_what_is_no_tensor_is_refused(ort: ModuleType) -> None:
    with pytest.raises(TypeError):
        ort.OrtValue.from_dlpack(3)
    with pytest.raises((BufferError, ValueError)):
        ort.OrtValue.from_dlpack(np.array(["text"]))


def test_numbers_as_another_type_of_onnx(ort: ModuleType) -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2 as bfloat16
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)" and value.element_type() == TensorProto.BFLOAT16
    if ort is vksched.onnxruntime:
        assert value.numpy().astype(np.float32).tolist() == [1, 2]
    with pytest.raises((RuntimeError, TypeError), match="bytes|size"):
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.FLOAT)


def test_copies_between_values() -> None:
    first = vksched.onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32))
    second = vksched.onnxruntime.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    vksched.onnxruntime.copy_tensors([first], [second])
    assert second.numpy().tolist() == [1, 1, 1]
    with pytest.raises(vs.ShapeError):
        second.update_inplace(np.ones(4, np.float32))


def test_torch_shares_memory_both_ways(ort: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3)
    value = ort.OrtValue.from_dlpack(tensor)
    tensor[0, 0] = 5
    assert value.numpy()[0, 0] == 5
    back = torch.from_dlpack(value)
    assert back.data_ptr() == value.data_ptr() and back.shape == (2, 3)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x) => (float[n,3] y) '
        "{ y = Relu(x) }"
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run_with_ort_values(None, {"x": value})
    assert torch.equal(torch.from_dlpack(y), tensor)


def test_a_tensor_elsewhere_says_what_to_do() -> None:
    class Elsewhere:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not in host memory")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(vs.GraphError, match="host memory.*try a copy on the CPU"):
        vksched.onnxruntime.OrtValue.from_dlpack(Elsewhere())
