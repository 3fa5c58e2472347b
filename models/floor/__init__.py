"""Who shares a floor, and how it joins the GPU's time."""
