"""Planning: pure functions from a Graph and a Topology to a Plan. Nothing here touches a device."""
