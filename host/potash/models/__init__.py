"""Models: quantised networks to run on the device, made, converted and inspected."""
