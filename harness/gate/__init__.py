"""The gate: may what changed go out? Rules, policy, what makes two sets comparable, and why a case became slower."""
