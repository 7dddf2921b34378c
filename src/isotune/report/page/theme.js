"use strict";
// The reader's choice of colours, if there is one; a page opened from a mail may have no storage.
try {
  const chosen = localStorage.getItem("isotune-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) {
  // then the system's choice holds
}
