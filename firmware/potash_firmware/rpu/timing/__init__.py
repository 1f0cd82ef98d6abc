"""When commands complete: the guest's clock, its deadlines, and the modelled time of the drive."""
