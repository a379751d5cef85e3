    for (var b = 0u; b < cols / 32u; b = b + 1u) {
        fetch(b);
        for (var r = 0u; r < ROWS; r = r + 1u) {
            let block = rows[r] * (cols / 32u) + b;
            acc[r] = chain(acc[r], block, scales[block]);
        }
    }
