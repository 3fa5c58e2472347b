"""What may be said of a family, by name: the verdicts, and what an undecided one leaves open."""

TRANSFERS, RECALIBRATE, MISMATCH = "transfers", "recalibrate the floor", "shape mismatch"
INDISTINGUISHABLE, UNDECIDED = "floor or weight bandwidth, indistinguishable", "undecided"
VERDICTS = (TRANSFERS, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, UNDECIDED)

SLOPE = "slope"
UNSEEN = "slope: T_gpu varies too little over the cells"
FLOOR_OR_WEIGHTS = "level: a floor or the weights' bandwidth"
WITHIN_OR_NOT = "level: within the margins or not"
UNDER_ANY_FLOOR = "level: off under any floor, these steps vary more than the anchor's"
FLOOR_OR_ERROR = "level: another floor, or an error of T_gpu within the margin"
