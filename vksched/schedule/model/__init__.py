"""The model of scheduling: task graphs, problems, ranks, simulation, lower bounds."""
