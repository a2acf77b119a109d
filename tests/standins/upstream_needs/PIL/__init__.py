"""Stands in for Pillow, which upstream's preprocessing imports and uses for images only.

`Image` is a name and no submodule: `from PIL import Image` works, while transformers, which tries
`import PIL.Image`, goes on without Pillow.
"""

Image = None
