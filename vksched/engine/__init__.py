"""Execution of compiled graphs: devices, states, replanning, runs."""
