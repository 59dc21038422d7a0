"""How many samples d_k and local updates tau_k each learner gets: exact solvers and baselines."""
