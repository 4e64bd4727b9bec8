"""What is watched while a scenario plays, from outside of the product.

Read `monitor` first.
"""
