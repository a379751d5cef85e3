    for (var k = 0u; k < cols; k = k + 1u) {
        let w = weight(k);
        for (var r = 0u; r < ROWS; r = r + 1u) {
            acc[r] = f_fma(w, bitcast<f32>(codes[rows[r] * cols + k]), acc[r]);
        }
    }
