"""Say in help texts how the costs of a forward pass are written, and what each is worth."""

from duodec.backends.curves import published

CURVES = f"""[bold]Curves[/bold]

25     milliseconds, however many rows (to 81): a limit that flatters, no hardware's curve

1:47.6,2:57,4:64,8:95     milliseconds by rows; linear between, beyond as between the last two

{", ".join(published())}     measured by others up to a
number of rows, and a model beyond it: results and docs/evaluation.md name the sources

roofline:1008GB/s,165TFLOPS,4.7GB     a model, not a measurement: the longer of reading the weights
and of the rows' arithmetic, at 4.5 bits a weight; a fourth part, such as 16bit, says otherwise"""
