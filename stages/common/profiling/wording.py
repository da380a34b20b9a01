"""What a profile does not tell, in words."""


def unexplained(percent):
    """Return in words what a profile leaves out of a call, or counts on top of it, where `percent` is below zero."""
    if percent < 0:
        return f"the profile counts {-percent:.0f} % more than the call takes"
    return f"the profile leaves {percent:.0f} % of the call unexplained"
