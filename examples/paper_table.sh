#!/bin/sh
# Measure a pair and write its tables and figures: sh examples/paper_table.sh TARGET DRAFT FOLDER
set -eu
duodec bench -m "$1" -md "$2" --methods ar,sps,auto --limit "${LIMIT:-5}" --output "$3"
duodec report "$3" --latex "$3/table.tex" --csv "$3/table.csv" --figures "$3/figures"
