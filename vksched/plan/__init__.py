"""Planning: pure functions from a Graph and a Machine to a Plan. Nothing here touches a device."""
