"""Times of completions: the modelled time of the drive and of jobs, and stops of the guest."""
