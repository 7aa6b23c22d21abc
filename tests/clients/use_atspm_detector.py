"""atspm-detector: tells phase, function and lanes of traffic detectors, by tree ensembles and
networks, from the half hour of events that it brings along.
"""

from importlib.resources import files

import duckdb
from atspm_detector import predict
from measured import report

sample = files("atspm_detector") / "data" / "sample_events.parquet"
events = duckdb.sql(f"select * from '{sample}'").df()


def work() -> object:
    found = predict(events, threads=1)
    return found.astype(object).where(found.notna(), None).to_dict("list")


report(work, repeats=1)
