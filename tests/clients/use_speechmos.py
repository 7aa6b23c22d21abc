"""speechmos: rates speech by five networks: noise, lost packets, echo."""

import numpy as np
from measured import report, sound
from speechmos import aecmos, dnsmos, plcmos

speech = sound(10, 16000)


def work() -> list[object]:
    np.random.seed(0)  # plcmos draws those who rate
    echo = {"lpb": np.roll(speech, 900), "mic": 0.7 * speech, "enh": 0.5 * speech}
    return [
        dnsmos.run(speech, 16000),
        dnsmos.run(speech, 16000, model_type="dnsmos_personalized"),
        plcmos.run(speech, 16000),
        aecmos.run(echo, 16000),
    ]


report(work)
