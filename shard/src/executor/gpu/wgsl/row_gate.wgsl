    for (var i = t; i < cols; i = i + 64u) {
        let gate = src[2u * row * cols + i];
        let up = src[2u * row * cols + cols + i];
        row_out[row * cols + i] = CURVE;
    }
