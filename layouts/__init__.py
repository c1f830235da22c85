"""Pure geometry: tile orders, tile grids and region planning. numpy only."""
