"""What would lower a training's peak, by a step of it that was traced.

`plan` and `report` say it: `lives` tries changes on a trace, `optimizers` sees
what they have, and `advice` puts into words what is worth a change.
"""
