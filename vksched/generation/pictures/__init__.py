"""Pictures in prompts: their encoder, and their tokens in the KV cache."""
