#!/bin/sh
# Serve a GGUF file to Open WebUI: sh examples/open_webui.sh MODEL.gguf, then open http://127.0.0.1:3000
set -eu
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
${OPEN_WEBUI:-docker run -d -p 3000:8080 --add-host=host.docker.internal:host-gateway \
  -e OPENAI_API_BASE_URL=http://host.docker.internal:8000/v1 -e OPENAI_API_KEY=$key \
  ghcr.io/open-webui/open-webui:main}
exec duodec serve -m "$1" --host 0.0.0.0 --api-key "$key" --alias "$(basename "$1" .gguf)"
