"""How several GPUs serve a language model: layers, pipeline or replicas."""
