"""DeepSeek V2, V3 and R1, and models with their network: Kimi K2, GLM 4.7 Flash, GigaChat 3,
Mistral 4. They have latent attention, experts and shared experts; V3 chooses experts of the
best groups. MiniCPM 3 has scale factors instead of experts.

Sources: https://arxiv.org/abs/2405.04434, https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

from .family import Family

DEEPSEEK2 = Family(interleaved=True)
MINICPM3 = Family(logits_over_scale=True)
