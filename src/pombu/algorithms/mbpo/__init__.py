"""MBPO: a soft actor-critic that learns from short branches of imagined steps."""
