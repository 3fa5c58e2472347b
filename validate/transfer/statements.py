"""What may be said of a family, by name: the verdicts, and what an undecided one leaves open."""

TRANSFERS, RECALIBRATE, MISMATCH = "transfers", "recalibrate the floor", "shape mismatch"
INDISTINGUISHABLE, UNDECIDED = "floor or weight bandwidth, indistinguishable", "undecided"
VERDICTS = (TRANSFERS, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, UNDECIDED)
NONE = "none of these"
STATED = (TRANSFERS, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, NONE)
"""What has a probability: the statements behind the verdicts, and that none of the first three holds."""

SLOPE = "slope"
UNSEEN = "slope: T_gpu varies too little over the cells"
FLOOR_OR_WEIGHTS = "level: a floor or the weights' bandwidth"
WITHIN_OR_NOT = "level: within the margins or not"
UNDER_ANY_FLOOR = "level: off under any floor, these steps vary more than the anchor's"
OF_SEVERAL = "slope: likely off, but not certain enough for one of several GPUs"
ERROR_OR_BATCH = "slope: an error of T_gpu, or a floor that grows with the batch"
WITHIN_MARGIN = "level: off by errors of T_gpu that are within the margin"
JOINS = "joins"
"""How the opening of a question is spelled that rests on the way in which floors join."""
FLOOR_OR_ERROR = "level: another floor, or an error of T_gpu within the margin"
