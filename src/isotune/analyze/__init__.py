"""Trajectories -> findings. numpy and scipy only; every result carries its uncertainty and says why it refuses."""
