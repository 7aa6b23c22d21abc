"""Plans as values: costs, simulation, verification, explanation, drawing and serialization. No
module here touches a device.
"""
