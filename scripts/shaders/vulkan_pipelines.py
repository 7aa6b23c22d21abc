"""Create compute pipelines on the first Vulkan device and print what its compiler tells of them.

A child process of shader_stats.py, which chooses the driver by the environment. On stdin JSON, a
list of {"spirv": file, "bindings": count, "push_bytes": size, "constants": [values by id],
"assembly": whether to print the code too}. On stdout a line of JSON for the device, then one per
pipeline as it is made, so that a compiler that dies is caught with its shader.

Plain ctypes on the loader: no memory can be allocated on Mesa's null devices, so a pipeline is made
from a bare layout, and no native module need be built. Names are those of vulkan_core.h.
Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from ctypes import POINTER, byref, c_char, c_char_p, c_void_p
from pathlib import Path
from typing import Any

U32 = ctypes.c_uint32
SIZE = ctypes.c_size_t
HANDLE = ctypes.c_uint64

STORAGE_BUFFER = 7
COMPUTE = 0x20
CAPTURE_STATISTICS = 0x40
CAPTURE_CODE = 0x80
VULKAN_1_1 = 1 << 22 | 1 << 12
EXTENSION = b"VK_KHR_pipeline_executable_properties"
TEXT = c_char * 256


class VulkanError(Exception):
    """A Vulkan function did not succeed, or there is nothing to call it on."""


class Info(ctypes.Structure):
    """A structure that starts with its type and a chain; the type is filled in."""

    TYPE = 0

    def __init__(self, **values: Any):
        super().__init__(sType=self.TYPE, **values)


HEAD = [("sType", U32), ("pNext", c_void_p)]


class ApplicationInfo(Info):
    _fields_ = [
        *HEAD,
        ("pApplicationName", c_char_p),
        ("applicationVersion", U32),
        ("pEngineName", c_char_p),
        ("engineVersion", U32),
        ("apiVersion", U32),
    ]


class InstanceCreateInfo(Info):
    TYPE = 1
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("pApplicationInfo", POINTER(ApplicationInfo)),
        ("enabledLayerCount", U32),
        ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", U32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
    ]


class DeviceQueueCreateInfo(Info):
    TYPE = 2
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("queueFamilyIndex", U32),
        ("queueCount", U32),
        ("pQueuePriorities", POINTER(ctypes.c_float)),
    ]


class DeviceCreateInfo(Info):
    TYPE = 3
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("queueCreateInfoCount", U32),
        ("pQueueCreateInfos", POINTER(DeviceQueueCreateInfo)),
        ("enabledLayerCount", U32),
        ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", U32),
        ("ppEnabledExtensionNames", POINTER(c_char_p)),
        ("pEnabledFeatures", c_void_p),
    ]


class PipelineExecutablePropertiesFeatures(Info):
    TYPE = 1000269000
    _fields_ = [*HEAD, ("pipelineExecutableInfo", U32)]


class PhysicalDeviceDriverProperties(Info):
    TYPE = 1000196000
    _fields_ = [
        *HEAD,
        ("driverID", U32),
        ("driverName", TEXT),
        ("driverInfo", TEXT),
        ("conformanceVersion", U32),
    ]


class PhysicalDeviceProperties2(Info):
    """Of the 824 bytes of properties only the device's name is read."""

    TYPE = 1000059001
    _fields_ = [*HEAD, ("numbers", U32 * 5), ("deviceName", TEXT), ("rest", ctypes.c_uint64 * 69)]


class ShaderModuleCreateInfo(Info):
    TYPE = 16
    _fields_ = [*HEAD, ("flags", U32), ("codeSize", SIZE), ("pCode", c_char_p)]


class DescriptorSetLayoutBinding(ctypes.Structure):
    _fields_ = [
        ("binding", U32),
        ("descriptorType", U32),
        ("descriptorCount", U32),
        ("stageFlags", U32),
        ("pImmutableSamplers", c_void_p),
    ]


class DescriptorSetLayoutCreateInfo(Info):
    TYPE = 32
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("bindingCount", U32),
        ("pBindings", POINTER(DescriptorSetLayoutBinding)),
    ]


class PushConstantRange(ctypes.Structure):
    _fields_ = [("stageFlags", U32), ("offset", U32), ("size", U32)]


class PipelineLayoutCreateInfo(Info):
    TYPE = 30
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("setLayoutCount", U32),
        ("pSetLayouts", POINTER(HANDLE)),
        ("pushConstantRangeCount", U32),
        ("pPushConstantRanges", POINTER(PushConstantRange)),
    ]


class SpecializationMapEntry(ctypes.Structure):
    _fields_ = [("constantID", U32), ("offset", U32), ("size", SIZE)]


class SpecializationInfo(ctypes.Structure):
    _fields_ = [
        ("mapEntryCount", U32),
        ("pMapEntries", POINTER(SpecializationMapEntry)),
        ("dataSize", SIZE),
        ("pData", POINTER(U32)),
    ]


class PipelineShaderStageCreateInfo(Info):
    TYPE = 18
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("stage", U32),
        ("module", HANDLE),
        ("pName", c_char_p),
        ("pSpecializationInfo", POINTER(SpecializationInfo)),
    ]


FULL_SUBGROUPS = 2


class RequiredSubgroupSize(Info):
    TYPE = 1000225001
    _fields_ = [*HEAD, ("requiredSubgroupSize", U32)]


class ComputePipelineCreateInfo(Info):
    TYPE = 29
    _fields_ = [
        *HEAD,
        ("flags", U32),
        ("stage", PipelineShaderStageCreateInfo),
        ("layout", HANDLE),
        ("basePipelineHandle", HANDLE),
        ("basePipelineIndex", ctypes.c_int32),
    ]


class PipelineInfo(Info):
    TYPE = 1000269001
    _fields_ = [*HEAD, ("pipeline", HANDLE)]


class PipelineExecutableProperties(Info):
    TYPE = 1000269002
    _fields_ = [
        *HEAD,
        ("stages", U32),
        ("name", TEXT),
        ("description", TEXT),
        ("subgroupSize", U32),
    ]


class PipelineExecutableInfo(Info):
    TYPE = 1000269003
    _fields_ = [*HEAD, ("pipeline", HANDLE), ("executableIndex", U32)]


class PipelineExecutableStatistic(Info):
    TYPE = 1000269004
    _fields_ = [
        *HEAD,
        ("name", TEXT),
        ("description", TEXT),
        ("format", U32),
        ("value", ctypes.c_uint64),
    ]


class PipelineExecutableInternalRepresentation(Info):
    TYPE = 1000269005
    _fields_ = [
        *HEAD,
        ("name", TEXT),
        ("description", TEXT),
        ("isText", U32),
        ("dataSize", SIZE),
        ("pData", c_void_p),
    ]


FORMATS = ("<I4x", "<q", "<Q", "<d")
"""Of a statistic's value: bool, int64, uint64, double."""


class Device:
    """The first device of the first driver, with pipeline statistics enabled."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libvulkan.so.1")
        application = ApplicationInfo(apiVersion=VULKAN_1_1)
        instance = c_void_p()
        create = InstanceCreateInfo(pApplicationInfo=ctypes.pointer(application))
        self._call("vkCreateInstance", byref(create), None, byref(instance))
        count, physical = U32(1), c_void_p()
        devices = self._library.vkEnumeratePhysicalDevices
        result = devices(instance, byref(count), byref(physical))
        if result < 0 or not count.value:
            raise VulkanError(f"no device (vkEnumeratePhysicalDevices: {result})")
        driver = PhysicalDeviceDriverProperties()
        about = PhysicalDeviceProperties2(pNext=ctypes.addressof(driver))
        self._library.vkGetPhysicalDeviceProperties2(physical, byref(about))
        self.driver = f"{driver.driverName.decode()} {driver.driverInfo.decode()}"
        self.name = about.deviceName.decode()
        priority = ctypes.c_float(1.0)
        queue = DeviceQueueCreateInfo(queueCount=1, pQueuePriorities=ctypes.pointer(priority))
        features = PipelineExecutablePropertiesFeatures(pipelineExecutableInfo=1)
        extension = c_char_p(EXTENSION)
        opened = DeviceCreateInfo(
            pNext=ctypes.addressof(features),
            queueCreateInfoCount=1,
            pQueueCreateInfos=ctypes.pointer(queue),
            enabledExtensionCount=1,
            ppEnabledExtensionNames=ctypes.pointer(extension),
        )
        self._device = c_void_p()
        self._call("vkCreateDevice", physical, byref(opened), None, byref(self._device))
        self._library.vkGetDeviceProcAddr.restype = c_void_p
        self._modules: dict[str, HANDLE] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise VulkanError(f"{name}: {result}")

    def _create(self, what: str, info: Info) -> HANDLE:
        handle = HANDLE()
        self._call(f"vkCreate{what}", self._device, byref(info), None, byref(handle))
        return handle

    def _list(
        self, name: str, about: Info, kind: type[Info], fields: list[dict[str, int]] | None = None
    ) -> list[Any]:
        """Call one of the functions that first tell how many there are. fields: values to fill in
        for each.
        """
        address = self._library.vkGetDeviceProcAddr(self._device, name.encode())
        kinds = (ctypes.c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        function = ctypes.CFUNCTYPE(*kinds)(address)
        count = U32()
        for found in (None, True):
            filled = fields or [{}] * count.value
            items = (kind * count.value)(*(kind(**f) for f in filled)) if found else None
            result = function(self._device, ctypes.addressof(about), ctypes.addressof(count), items)
            if result:
                raise VulkanError(f"{name}: {result}")
        return list(items or ())

    def _module(self, path: str) -> HANDLE:
        if path not in self._modules:
            code = Path(path).read_bytes()
            info = ShaderModuleCreateInfo(codeSize=len(code), pCode=code)
            self._modules[path] = self._create("ShaderModule", info)
        return self._modules[path]

    def _layout(self, bindings: int, push_bytes: int) -> tuple[HANDLE, HANDLE]:
        """Return a set layout of storage buffers and a pipeline layout with push constants."""
        table = (DescriptorSetLayoutBinding * bindings)(
            *((i, STORAGE_BUFFER, 1, COMPUTE, None) for i in range(bindings))
        )
        layout = DescriptorSetLayoutCreateInfo(bindingCount=bindings, pBindings=table)
        set_layout = self._create("DescriptorSetLayout", layout)
        push = PushConstantRange(COMPUTE, 0, push_bytes)
        info = PipelineLayoutCreateInfo(
            setLayoutCount=1,
            pSetLayouts=ctypes.pointer(set_layout),
            pushConstantRangeCount=1 if push_bytes else 0,
            pPushConstantRanges=ctypes.pointer(push),
        )
        return set_layout, self._create("PipelineLayout", info)

    def _code(self, about: PipelineExecutableInfo) -> str:
        """Return the assembly, empty where the driver gives none."""
        kind = PipelineExecutableInternalRepresentation
        name = "vkGetPipelineExecutableInternalRepresentationsKHR"
        sizes = [found.dataSize for found in self._list(name, about, kind)]
        texts = [ctypes.create_string_buffer(size) for size in sizes]
        filled = self._list(
            name,
            about,
            kind,
            [{"dataSize": len(t), "pData": ctypes.addressof(t)} for t in texts],
        )
        named = {f.name.decode(): t.value.decode() for f, t in zip(filled, texts, strict=True)}
        return named.get("Assembly", "")

    def _statistics(self, about: PipelineExecutableInfo) -> dict[str, int | float]:
        name = "vkGetPipelineExecutableStatisticsKHR"
        return {
            s.name.decode(): struct.unpack(FORMATS[s.format], struct.pack("<Q", s.value))[0]
            for s in self._list(name, about, PipelineExecutableStatistic)
        }

    def compile(
        self,
        spirv: str,
        bindings: int,
        push_bytes: int,
        constants: list[int],
        assembly: bool = False,
        subgroup: int = 0,
    ) -> dict[str, Any]:
        """Create a pipeline; returns its executables, one for each subgroup size that the driver
        compiles for, with the compiler's statistics by their own names. subgroup: the size that
        its subgroups are to have; 0: any.
        """
        entries = (SpecializationMapEntry * len(constants))(
            *((i, 4 * i, 4) for i in range(len(constants)))
        )
        values = (U32 * len(constants))(*(v & 0xFFFFFFFF for v in constants))
        special = SpecializationInfo(len(constants), entries, 4 * len(constants), values)
        set_layout, layout = self._layout(bindings, push_bytes)
        required = RequiredSubgroupSize(requiredSubgroupSize=subgroup)
        stage = PipelineShaderStageCreateInfo(
            flags=FULL_SUBGROUPS if subgroup else 0,
            pNext=ctypes.addressof(required) if subgroup else None,
            stage=COMPUTE,
            module=self._module(spirv),
            pName=b"main",
            pSpecializationInfo=ctypes.pointer(special),
        )
        flags = CAPTURE_STATISTICS | (CAPTURE_CODE if assembly else 0)
        info = ComputePipelineCreateInfo(flags=flags, stage=stage, layout=layout)
        pipeline = HANDLE()
        start = time.perf_counter()
        create = ("vkCreateComputePipelines", self._device, HANDLE(0), 1, byref(info), None)
        self._call(*create, byref(pipeline))
        seconds = time.perf_counter() - start
        executables = self._list(
            "vkGetPipelineExecutablePropertiesKHR",
            PipelineInfo(pipeline=pipeline),
            PipelineExecutableProperties,
        )
        found = [
            {
                "subgroup_size": executable.subgroupSize,
                "statistics": self._statistics(about),
                "assembly": self._code(about) if assembly else "",
            }
            for number, executable in enumerate(executables)
            for about in [PipelineExecutableInfo(pipeline=pipeline, executableIndex=number)]
        ]
        for what, object_handle in (
            ("Pipeline", pipeline),
            ("PipelineLayout", layout),
            ("DescriptorSetLayout", set_layout),
        ):
            getattr(self._library, f"vkDestroy{what}")(self._device, object_handle, None)
        return {"seconds": seconds, "executables": found}


def main() -> int:
    """Read the pipelines from stdin and prints a line for the device and one for each."""
    try:
        device = Device()
    except (OSError, VulkanError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"driver": device.driver, "device": device.name}), flush=True)
    for pipeline in json.load(sys.stdin):
        try:
            answer = device.compile(**pipeline)
        except VulkanError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
