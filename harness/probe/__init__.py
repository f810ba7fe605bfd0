"""The only part of the suite that touches the machine: device, timing, clocks, power, environment."""
