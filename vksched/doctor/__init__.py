"""The examination of a computer's Vulkan devices, for `vksched doctor`."""
