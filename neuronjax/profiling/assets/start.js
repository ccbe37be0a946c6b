const page = document.getElementById("page");
document.body.append(tip);
(data.kind === "comparison" ? renderComparison : renderProfile)(page);
document.body.dataset.rendered = "yes";
