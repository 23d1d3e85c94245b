"""The Python interface: agents, ask/tell, saved runs, export and video.

Nothing is imported here, so that `pombu.agent.numpy_policy` works without JAX.
"""
