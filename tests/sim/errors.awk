# <cuda.h> into rows { CODE, "CODE", "text" } for cuGetErrorName and cuGetErrorString:
# the names are the header's own, the text is the name in words.
/^typedef enum cudaError_enum/ { inside = 1 }
inside && /^ *(CUDA_SUCCESS|CUDA_ERROR_[A-Z0-9_]+) *=/ {
	text = $1; sub(/^CUDA_(ERROR_)?/, "", text); gsub(/_/, " ", text)
	printf "{ %s, \"%s\", \"%s\" },\n", $1, $1, tolower(text)
}
inside && /^}/ { inside = 0 }
