"""The suite of language models: files, what they should compute, and how vksched reads with them.

files: random models --> cases: specs with expected logits --> reading: vksched on a device
                                                      '------> baselines/llama_cpp_baseline.py
"""
