"""Read and constrain calls of tools in the formats that chat templates use."""
