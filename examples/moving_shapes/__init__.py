"""A small two-expert video model of moving shapes, with everything that is needed to train and judge it."""
