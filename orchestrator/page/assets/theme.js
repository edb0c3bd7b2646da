try {
  const chosen = localStorage.getItem("airlock-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* of a file, some browsers keep nothing */ }
