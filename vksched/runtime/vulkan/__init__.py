"""Vulkan devices through Kompute and its companion."""
