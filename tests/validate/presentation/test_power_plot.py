"""The figure of simulated error rates, on a small made table, and that the report has it where rates are committed."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from rooffloor.validate.hypotheses.error_rates import Rates, Truth
from rooffloor.validate.presentation.figures.hypotheses import power
from rooffloor.validate.simulation.hypotheses import CLEAN, CURVE, POWER, SIZE


def made_rates(truths: tuple[Truth, ...] = (*CURVE, *POWER, *SIZE, *CLEAN)) -> Rates:
    """Rates that fall with the true difference; each scenario once."""
    rows = []
    for truth in dict.fromkeys(truths):
        rate = float(np.clip(0.6 - 0.2 * truth.difference, 0.0, 1.0))
        shares = {"supported": rate, "refuted": 0.3 * (1 - rate), "t, K-1 df": 0.8 * rate, "non-inferior": rate}
        rows += [
            asdict(truth) | {"studies": 100, "quantity": name, "rate": share, "se": 0.02}
            for name, share in shares.items()
        ]
    return Rates(pd.DataFrame(rows))


def test_power_draws_the_rates_of_three_gpus_over_the_true_difference() -> None:
    rates = made_rates()
    ax = power(rates)
    drawn = {c.get_label(): c.lines[0] for c in ax.containers}
    assert set(drawn) == {"supported", "refuted", "t-test over GPUs, p < 0.05"}
    differences = [-2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0]
    assert np.asarray(drawn["supported"].get_xdata()) == pytest.approx(differences)
    wanted = [100 * rates.rate("supported", difference=d, between=1.0) for d in differences]
    assert np.asarray(drawn["supported"].get_ydata()) == pytest.approx(wanted)
    said = " ".join(t.get_text() for t in ax.figure.findobj(Text))
    assert "simulated" in said
    assert "(points)" in said
    assert "(percent)" in said
    ax.figure.draw_without_rendering()


def test_power_without_such_studies_is_refused() -> None:
    with pytest.raises(ValueError, match="no simulated study"):
        power(made_rates((Truth("H2", gpus=1),)))
