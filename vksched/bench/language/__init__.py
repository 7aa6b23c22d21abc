"""The language-model suite: files, expected logits, and vksched as a runner.

files: random models --> llm_cases: specs with expected logits --> llm_runner: vksched on a device
                                                    '------> baselines/llama_cpp_baseline.py
"""
