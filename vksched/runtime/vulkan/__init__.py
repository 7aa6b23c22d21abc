"""Vulkan devices, using Kompute and its companion module."""
