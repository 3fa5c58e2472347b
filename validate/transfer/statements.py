"""What may be said of a family, by name: verdicts on use, causes, and what a cause that cannot be told leaves open."""

HOLDS, DOES_NOT_HOLD, UNDECIDED = "holds", "does not hold", "undecided"
VERDICTS = (HOLDS, DOES_NOT_HOLD, UNDECIDED)
"""Whether the calibration holds for use."""
NOTHING, RECALIBRATE, MISMATCH = "nothing beyond the margins", "recalibrate the floor", "shape mismatch"
INDISTINGUISHABLE, CANNOT_TELL = "floor or weight bandwidth, indistinguishable", "cannot tell"
CAUSES = (NOTHING, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, CANNOT_TELL)
"""Why a calibration is off, or that it is not."""
NONE = "none of these"
STATED = (NOTHING, RECALIBRATE, MISMATCH, INDISTINGUISHABLE, NONE)
"""What has a probability: the statements behind the causes, and that none of the first three holds."""

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
